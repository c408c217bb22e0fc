/* Finding cuBLASLt: by its soname, where the loader looks (run path, LD_LIBRARY_PATH, ldconfig). */
#include <dlfcn.h>
#include <pthread.h>

#include "kernels/cuda/blas.cuh"

#define TEXT_OF(x)   #x
#define TEXT(x)      TEXT_OF(x)
#define LIBRARY_NAME "libcublasLt.so." TEXT(CUBLAS_VER_MAJOR)

Blas blas;

static pthread_mutex_t loading = PTHREAD_MUTEX_INITIALIZER;
static bool loaded;

static const struct {
    const char *name;
    void **place;
} functions[] = {
#define BLAS_ROW(name) {"cublasLt" #name, (void **)&blas.name},
    BLAS_FUNCTIONS(BLAS_ROW)
#undef BLAS_ROW
};

static Status load(void) {
    void *library = dlopen(LIBRARY_NAME, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return status_set(STATUS_DEVICE,
                          "loading cuBLASLt of CUDA %d: %s (its folder goes into LD_LIBRARY_PATH)",
                          CUBLAS_VER_MAJOR, dlerror());
    for (size_t i = 0; i < sizeof functions / sizeof functions[0]; i++) {
        *functions[i].place = dlsym(library, functions[i].name);
        if (*functions[i].place) continue;
        (void)dlclose(library);
        return status_set(STATUS_DEVICE, LIBRARY_NAME " has no %s", functions[i].name);
    }
    return STATUS_OK;
}

Status blas_load(void) {
    (void)pthread_mutex_lock(&loading);
    const Status status = loaded ? STATUS_OK : load();
    loaded = status == STATUS_OK;
    (void)pthread_mutex_unlock(&loading);
    return status;
}
