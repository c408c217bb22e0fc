/* The driver's encoder of tensor maps, found at run time: programs do not link libcuda. */
#include "kernels/cuda/tensor_map.cuh"

typedef CUresult (*EncodeTiled)(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *,
                                const cuuint64_t *, const cuuint64_t *, const cuuint32_t *,
                                const cuuint32_t *, CUtensorMapInterleave, CUtensorMapSwizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

static Status encode_find(EncodeTiled *out) {
    static EncodeTiled encode; /* the driver's function: the same for all devices */
    if (!encode) {
        void *entry = NULL;
        cudaDriverEntryPointQueryResult found;
        CUDA_TRY(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                  cudaEnableDefault, &found),
                 "looking for cuTensorMapEncodeTiled");
        if (!entry) return status_set(STATUS_DEVICE, "the driver has no cuTensorMapEncodeTiled");
        encode = (EncodeTiled)entry;
    }
    *out = encode;
    return STATUS_OK;
}

Status tensor_map(CUtensorMap *map, CUtensorMapDataType type, int rank, const void *p,
                  const cuuint64_t *size, const cuuint64_t *pitches, const cuuint32_t *box,
                  CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion) {
    static const cuuint32_t step[5] = {1, 1, 1, 1, 1};
    EncodeTiled encode = NULL;
    TRY(encode_find(&encode));
    const CUresult code = encode(map, type, (cuuint32_t)rank, (void *)p, size, pitches, box, step,
                                 CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, promotion,
                                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code == CUDA_SUCCESS) return STATUS_OK;
    return status_set(STATUS_DEVICE,
                      "describing %d dimensions, dense size %llu, to the copy engine: error %d",
                      rank, (unsigned long long)size[0], code);
}

static Status map_rows(CUtensorMap *map, const void *p, int64_t rows, int64_t columns, int box_rows,
                       int box_columns, CUtensorMapSwizzle swizzle) {
    const cuuint64_t size[2] = {(cuuint64_t)columns, (cuuint64_t)rows};
    const cuuint64_t pitch[1] = {(cuuint64_t)columns * sizeof(bf16)};
    const cuuint32_t box[2] = {(cuuint32_t)box_columns, (cuuint32_t)box_rows};
    return tensor_map(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, p, size, pitch, box, swizzle,
                      CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}

Status map_matrix(CUtensorMap *map, const void *p, int64_t rows, int64_t columns, int box_rows) {
    return map_rows(map, p, rows, columns, box_rows, 64, CU_TENSOR_MAP_SWIZZLE_128B);
}

Status map_narrow(CUtensorMap *map, const void *p, int64_t rows, int64_t columns, int box_rows) {
    return map_rows(map, p, rows, columns, box_rows, 32, CU_TENSOR_MAP_SWIZZLE_64B);
}
