"""Running a program under kvlint: execution like ``python``, interception of operator calls, capture, replay."""
