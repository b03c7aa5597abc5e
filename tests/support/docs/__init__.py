"""Examples and commands that stand in the documents, taken out and carried out."""
