"""What pushes, registers and views, by chance or by plan."""
