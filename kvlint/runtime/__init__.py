"""Running a program under kvlint: execution, interception, capture, replay."""
