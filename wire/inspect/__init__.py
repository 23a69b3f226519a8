"""Commands for people and programs: text, plain values, JSON lines, and frames read one by one."""
