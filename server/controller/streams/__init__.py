"""What the controller does with streams, transactions, reader groups, tables and scopes."""
