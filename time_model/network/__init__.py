"""Which links a group of ranks uses, and the seconds of collectives over them."""
