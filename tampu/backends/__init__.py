"""Other engines that can answer in the place of our own."""
