"""When maintenance is due and what may run now: pure decisions that know the model only."""
