// An empty library of libtorch_cpu's name. Linking against it records the dependency, so that building needs no
// torch; at run time the loader finds the real one, which `import torch` has already loaded.
