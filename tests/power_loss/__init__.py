"""Proof against losses of power: a recorder of what a store asks of the disk, and images of what a loss would leave."""
