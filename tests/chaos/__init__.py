"""Kill any process at any moment: nothing is lost, nothing is done or billed twice."""
