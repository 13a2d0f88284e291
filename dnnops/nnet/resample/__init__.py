"""Images resampled or cut into neighborhoods."""
