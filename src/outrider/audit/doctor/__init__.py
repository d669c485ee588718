"""What the machine has, what a pair of models is good for, and what to do about it."""
