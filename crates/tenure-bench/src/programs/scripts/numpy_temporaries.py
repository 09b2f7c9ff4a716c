"""Arithmetic on arrays: each operator makes a temporary of the arrays' size. Arguments: MiB, rounds."""
import sys
import numpy

size, rounds = int(sys.argv[1]) << 17, int(sys.argv[2])
a = numpy.arange(size, dtype=numpy.float64)
b = numpy.ones(size)
total = 0.0
for i in range(rounds):
    c = (a * 1.5 + b) * (a - b) + a
    total += float(c[i % size]) + float(c[-1])
print(total)
