/* Decoded views kept in memory, first come, until the room is used up. Thread-safe. Private to
 * datasets/. */
#ifndef TTV_DATASETS_VIEW_CACHE_H
#define TTV_DATASETS_VIEW_CACHE_H

#include "datasets/view.h"

typedef struct ViewCache ViewCache;

/* bytes 0: no cache, *out is NULL, which the other functions take. */
Status view_cache_open(const SceneSet *set, const ViewOptions *o, int64_t bytes, ViewCache **out);
void view_cache_close(ViewCache *c);

/* Copies a view out; false when it is not kept. */
bool view_cache_get(ViewCache *c, int64_t scene, int64_t frame, int crop, uint8_t *pixels,
                    ViewCamera *camera, int64_t source[2]);
/* Keeps a view if there is room (memory that is lacking is no error). */
void view_cache_put(ViewCache *c, int64_t scene, int64_t frame, int crop, const uint8_t *pixels,
                    const ViewCamera *camera, const int64_t source[2]);

#endif
