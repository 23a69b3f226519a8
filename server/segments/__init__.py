"""What the controller asks of segment stores: in this process, remote, recorded."""
