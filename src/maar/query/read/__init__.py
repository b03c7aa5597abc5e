"""How a question reads the lake: DuckDB over listed files, and decoded level 0."""
