"""One idea a file. A pass takes an overlay, edits it, and says what it did and what it left alone, and why."""
