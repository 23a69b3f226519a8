"""The controller's state: streams and their epochs, the operations that change it, its journal and its memory."""
