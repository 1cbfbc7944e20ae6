"""Small pure helpers that every part may use; imports nothing of lightkit above it."""
