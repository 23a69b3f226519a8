"""What the codec is measured against: code by hand, construct, msgspec's msgpack."""
