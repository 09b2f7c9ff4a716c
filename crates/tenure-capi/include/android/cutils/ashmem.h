/* For programs that include <cutils/ashmem.h>: see tenure_ashmem.h. */
#include <tenure_ashmem.h>
