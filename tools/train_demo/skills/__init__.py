"""What the model learns, a file for each skill: questions about made-up facts and their answers."""
