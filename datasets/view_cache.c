#include "datasets/view_cache.h"

#include <pthread.h>
#include <string.h>

#include "core/memory.h"

typedef struct Kept {
    ViewCamera camera;
    int64_t source[2];
    uint8_t pixels[];
} Kept;

struct ViewCache {
    pthread_mutex_t lock;
    int64_t *first; /* of each scene, in `kept` */
    Kept **kept;    /* by scene, frame and crop; NULL: not kept */
    int64_t frames, left, pixel_bytes;
};

Status view_cache_open(const SceneSet *set, const ViewOptions *o, int64_t bytes, ViewCache **out) {
    void *block;
    *out = NULL;
    if (bytes <= 0) return STATUS_OK;
    TRY(mem_alloc(&block, 1, sizeof(ViewCache), "view cache"));
    ViewCache *c = block;
    c->left = bytes;
    c->pixel_bytes = o->width * o->height * 3;
    pthread_mutex_init(&c->lock, NULL);
    Status s = mem_alloc(&block, scene_set_count(set), sizeof(int64_t), "view cache");
    if (s == STATUS_OK) {
        c->first = block;
        for (int64_t i = 0; i < scene_set_count(set); i++) {
            c->first[i] = c->frames;
            c->frames += VIEW_CROPS * scene_set_at(set, i)->count;
        }
        s = mem_alloc(&block, c->frames, sizeof(Kept *), "view cache");
    }
    if (s != STATUS_OK) {
        c->frames = 0;
        view_cache_close(c);
        return s;
    }
    c->kept = block;
    *out = c;
    return STATUS_OK;
}

void view_cache_close(ViewCache *c) {
    if (c == NULL) return;
    for (int64_t i = 0; i < c->frames; i++) mem_free(c->kept[i]);
    mem_free(c->kept);
    mem_free(c->first);
    pthread_mutex_destroy(&c->lock);
    mem_free(c);
}

static Kept **place_of(ViewCache *c, int64_t scene, int64_t frame, int crop) {
    return &c->kept[c->first[scene] + VIEW_CROPS * frame + VIEW_CROPS / 2 + crop];
}

/* What is kept is never changed or freed before the end: the lock guards the pointer only. */
bool view_cache_get(ViewCache *c, int64_t scene, int64_t frame, int crop, uint8_t *pixels,
                    ViewCamera *camera, int64_t source[2]) {
    if (c == NULL) return false;
    pthread_mutex_lock(&c->lock);
    const Kept *k = *place_of(c, scene, frame, crop);
    pthread_mutex_unlock(&c->lock);
    if (k == NULL) return false;
    memcpy(pixels, k->pixels, (size_t)c->pixel_bytes);
    *camera = k->camera;
    memcpy(source, k->source, sizeof k->source);
    return true;
}

void view_cache_put(ViewCache *c, int64_t scene, int64_t frame, int crop, const uint8_t *pixels,
                    const ViewCamera *camera, const int64_t source[2]) {
    if (c == NULL) return;
    int64_t bytes = (int64_t)sizeof(Kept) + c->pixel_bytes;
    Kept **place = place_of(c, scene, frame, crop);
    pthread_mutex_lock(&c->lock);
    bool room = *place == NULL && c->left >= bytes;
    if (room) c->left -= bytes;
    pthread_mutex_unlock(&c->lock);
    Kept *k = room ? mem_malloc((size_t)bytes) : NULL;
    if (k == NULL) return;
    k->camera = *camera;
    memcpy(k->source, source, sizeof k->source);
    memcpy(k->pixels, pixels, (size_t)c->pixel_bytes);
    pthread_mutex_lock(&c->lock);
    bool lost = *place != NULL; /* another thread was faster */
    if (lost)
        c->left += bytes;
    else
        *place = k;
    pthread_mutex_unlock(&c->lock);
    if (lost) mem_free(k);
}
