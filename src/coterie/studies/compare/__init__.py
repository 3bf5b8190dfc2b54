"""Many runs side by side: methods × settings × seeds on the same clients."""
