/* Descriptions of the GLU branch's maps for the copy engine. */
#include "kernels/cuda/glu_feed.cuh"
#include "kernels/cuda/tensor_map.cuh"

Status map_boxes(CUtensorMap *map, const void *p, int rank, const int64_t *size,
                 const int64_t *pitches, const int *box) {
    cuuint64_t extent[5], pitch[4];
    cuuint32_t edge[5];
    for (int i = 0; i < rank; i++) {
        extent[i] = (cuuint64_t)size[i];
        edge[i] = (cuuint32_t)box[i];
        if (i + 1 < rank) pitch[i] = (cuuint64_t)pitches[i] * sizeof(bf16);
    }
    return tensor_map(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, rank, p, extent, pitch, edge,
                      CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

/* [batch][tokens][wide] from p on, `pitch` elements from token to token. */
static Status map_tokens(CUtensorMap *map, const bf16 *p, const GluArgs &a, int64_t pitch,
                         int rows) {
    const cuuint64_t size[3] = {(cuuint64_t)a.heads * a.head_dim, (cuuint64_t)a.tokens,
                                (cuuint64_t)a.batch};
    const cuuint64_t pitches[2] = {(cuuint64_t)pitch * sizeof(bf16),
                                   (cuuint64_t)pitch * a.tokens * sizeof(bf16)};
    const cuuint32_t box[3] = {64, (cuuint32_t)rows, 1};
    return tensor_map(map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 3, p, size, pitches, box,
                      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_128B);
}

Status feed_maps(FeedMaps *maps, const GluArgs &a, const void *qkv, const void *dcat, int rows) {
    TRY(output_maps(maps, a, qkv, rows));
    return map_tokens(&maps->o, (const bf16 *)dcat, a, a.cat_pitch, rows);
}

Status output_maps(FeedMaps *maps, const GluArgs &a, const void *dqkv, int rows) {
    const int64_t wide = (int64_t)a.heads * a.head_dim;
    const bf16 *q = (const bf16 *)dqkv;
    TRY(map_tokens(&maps->q, q, a, a.pitch, rows));
    TRY(map_tokens(&maps->k, q + wide, a, a.pitch, rows));
    return map_tokens(&maps->v, q + 2 * wide, a, a.pitch, rows);
}

Status gradients_map(CUtensorMap *map, const GluArgs &a) {
    const cuuint64_t d = (cuuint64_t)a.head_dim,
                     size[2] = {d, (cuuint64_t)a.batch * a.heads * 2 * d},
                     pitches[1] = {d * sizeof(float)};
    const cuuint32_t box[2] = {32, (cuuint32_t)d};
    return tensor_map(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT32, 2, a.g, size, pitches, box,
                      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
}
