"""How a query reads the lake: DuckDB over listed files, and decoded level 0."""
