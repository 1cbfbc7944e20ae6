"""Several models as one: which are trained, how they train at once, and how their predictions become one."""
