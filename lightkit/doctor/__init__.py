"""What is wrong with a run before it costs a night: checks of data, model, training and machine."""
