"""Tables of rows by id that are there before anybody has written them."""
