"""What judges: models and audits that share no code with what they judge."""
