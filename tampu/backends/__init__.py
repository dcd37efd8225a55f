"""Other engines that can replace our own."""
