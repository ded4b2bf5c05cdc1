"""One reader a format: text to the record that `autoconfig check` takes."""
