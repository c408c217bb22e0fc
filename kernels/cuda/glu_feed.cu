/* Descriptions of the GLU branch's maps for the copy engine. */
#include "kernels/cuda/glu_feed.cuh"

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

Status map_boxes(CUtensorMap *map, const void *p, int rank, const int64_t *size,
                 const int64_t *pitches, const int *box) {
    EncodeTiled encode = NULL;
    TRY(encode_find(&encode));
    cuuint64_t extent[5], pitch[4];
    cuuint32_t edge[5], step[5];
    for (int i = 0; i < rank; i++) {
        extent[i] = (cuuint64_t)size[i];
        edge[i] = (cuuint32_t)box[i];
        step[i] = 1;
        if (i + 1 < rank) pitch[i] = (cuuint64_t)pitches[i] * sizeof(bf16);
    }
    const CUresult code =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, (cuuint32_t)rank, (void *)p, extent, pitch,
               edge, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS)
        return status_set(STATUS_DEVICE, "describing boxes to the copy engine: error %d", code);
    return STATUS_OK;
}

/* [batch][tokens][wide] from p on, `pitch` elements from token to token. */
static Status map_tokens(CUtensorMap *map, EncodeTiled encode, const bf16 *p, const GluArgs &a,
                         int64_t pitch, int rows) {
    const cuuint64_t size[3] = {(cuuint64_t)a.heads * a.head_dim, (cuuint64_t)a.tokens,
                                (cuuint64_t)a.batch};
    const cuuint64_t pitches[2] = {(cuuint64_t)pitch * sizeof(bf16),
                                   (cuuint64_t)pitch * a.tokens * sizeof(bf16)};
    const cuuint32_t box[3] = {64, (cuuint32_t)rows, 1}, step[3] = {1, 1, 1};
    const CUresult code =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, (void *)p, size, pitches, box, step,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS)
        return status_set(STATUS_DEVICE, "describing tokens to the copy engine: error %d", code);
    return STATUS_OK;
}

Status feed_maps(FeedMaps *maps, const GluArgs &a, const void *qkv, const void *dcat, int rows) {
    EncodeTiled encode = NULL;
    const int64_t wide = (int64_t)a.heads * a.head_dim;
    const bf16 *q = (const bf16 *)qkv;
    TRY(encode_find(&encode));
    TRY(map_tokens(&maps->q, encode, q, a, a.pitch, rows));
    TRY(map_tokens(&maps->k, encode, q + wide, a, a.pitch, rows));
    TRY(map_tokens(&maps->v, encode, q + 2 * wide, a, a.pitch, rows));
    return map_tokens(&maps->o, encode, (const bf16 *)dcat, a, a.cat_pitch, rows);
}

Status output_maps(FeedMaps *maps, const GluArgs &a, const void *dqkv, int rows) {
    EncodeTiled encode = NULL;
    const int64_t wide = (int64_t)a.heads * a.head_dim;
    const bf16 *q = (const bf16 *)dqkv;
    TRY(encode_find(&encode));
    TRY(map_tokens(&maps->q, encode, q, a, a.pitch, rows));
    TRY(map_tokens(&maps->k, encode, q + wide, a, a.pitch, rows));
    return map_tokens(&maps->v, encode, q + 2 * wide, a, a.pitch, rows);
}

Status gradients_map(CUtensorMap *map, const GluArgs &a) {
    EncodeTiled encode = NULL;
    TRY(encode_find(&encode));
    const cuuint64_t d = (cuuint64_t)a.head_dim,
                     size[2] = {d, (cuuint64_t)a.batch * a.heads * 2 * d},
                     pitches[1] = {d * sizeof(float)};
    const cuuint32_t box[2] = {32, (cuuint32_t)d}, step[2] = {1, 1};
    const CUresult code =
        encode(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, (void *)a.g, size, pitches, box, step,
               CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
               CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS)
        return status_set(STATUS_DEVICE, "describing G to the copy engine: error %d", code);
    return STATUS_OK;
}
