"""What clients of a real federation agree on before the first round, and what each of them keeps to itself."""
