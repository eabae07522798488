"""Quantization: precisions and calibration data in, exact scales and integer graphs out."""
