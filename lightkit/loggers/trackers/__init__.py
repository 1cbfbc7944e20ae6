"""Loggers that write for other programs: Weights & Biases, MLflow, tables, and what Lightning has loggers for."""
