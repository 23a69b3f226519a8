"""Defects that are planted in the store, the controller and the client: the judge and the explorer must find each."""
