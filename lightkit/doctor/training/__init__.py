"""Checks that need the model: its first loss, its gradients, whether it learns, how it is evaluated and saved."""
