"""Reader groups and the readers in them."""
