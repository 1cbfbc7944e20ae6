"""What is put into a network: LoRA, adapters and prefixes, and the way back to the plain one."""
