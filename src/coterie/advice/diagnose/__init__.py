"""Whether clients should be grouped, told before anything is trained."""
