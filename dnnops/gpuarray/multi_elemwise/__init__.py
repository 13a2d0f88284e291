"""One elementwise operation on many arrays."""
