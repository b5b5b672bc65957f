"""The engines that can stand behind one Triton model, all with the interface of `base`."""
