"""What an operator does when a log was lost, moved or doubted: back up, restore, copy, verify."""
