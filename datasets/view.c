#include "datasets/view.h"

#include <math.h>
#include <string.h>

#include "core/memory.h"

ViewOptions view_options_default(int64_t width, int64_t height) {
    return (ViewOptions){width, height, 0.5, 0.5, image_options_default()};
}

ViewGeometry view_geometry(const ViewOptions *o, int64_t width, int64_t height) {
    ViewGeometry g;
    double sx = (double)o->width / (double)width, sy = (double)o->height / (double)height;
    double scale = sx > sy ? sx : sy;
    g.full_width = (int64_t)rint((double)width * scale);
    g.full_height = (int64_t)rint((double)height * scale);
    if (g.full_width < o->width) g.full_width = o->width;
    if (g.full_height < o->height) g.full_height = o->height;
    g.left = (int64_t)floor((double)(g.full_width - o->width) * o->crop_x);
    g.top = (int64_t)floor((double)(g.full_height - o->height) * o->crop_y);
    return g;
}

void view_camera_pose(ViewCamera *c, const double w2c[12]) {
    static const double last[4] = {0, 0, 0, 1};
    memcpy(c->w2c, w2c, 12 * sizeof(double));
    memcpy(c->w2c + 12, last, sizeof last);
    for (int r = 0; r < 3; r++) {
        c->c2w[4 * r + 3] = 0;
        for (int k = 0; k < 3; k++) {
            c->c2w[4 * r + k] = w2c[4 * k + r];
            c->c2w[4 * r + 3] -= w2c[4 * k + r] * w2c[4 * k + 3];
        }
    }
    memcpy(c->c2w + 12, last, sizeof last);
}

ViewCamera view_camera(const SceneFrame *f, const ViewOptions *o, int64_t width, int64_t height) {
    ViewCamera c;
    ViewGeometry g = view_geometry(o, width, height);
    double own_width = f->width > 0 ? f->width : (double)width;
    double own_height = f->height > 0 ? f->height : (double)height;
    double sx = (double)g.full_width / own_width, sy = (double)g.full_height / own_height;
    view_camera_pose(&c, f->w2c);
    c.intrinsics[0] = f->fx * sx;
    c.intrinsics[1] = f->fy * sy;
    c.intrinsics[2] = f->cx * sx - (double)g.left;
    c.intrinsics[3] = f->cy * sy - (double)g.top;
    return c;
}

static void mirror_rows(uint8_t *pixels, int64_t width, int64_t height) {
    for (int64_t row = 0; row < height; row++) {
        uint8_t *a = pixels + row * width * 3, *b = a + 3 * (width - 1), swap[3];
        for (; a < b; a += 3, b -= 3) {
            memcpy(swap, a, 3);
            memcpy(a, b, 3);
            memcpy(b, swap, 3);
        }
    }
}

/* c2w becomes F c2w F with F = diag(-1, 1, 1, 1) (lact_nvs.md 12), w2c likewise. */
void view_mirror(uint8_t *pixels, ViewCamera *camera, int64_t width, int64_t height) {
    mirror_rows(pixels, width, height);
    for (int i = 1; i < 4; i++) {
        camera->c2w[i] = -camera->c2w[i];
        camera->c2w[4 * i] = -camera->c2w[4 * i];
        camera->w2c[i] = -camera->w2c[i];
        camera->w2c[4 * i] = -camera->w2c[4 * i];
    }
    camera->intrinsics[2] = (double)width - camera->intrinsics[2];
}

void view_tint(uint8_t *pixels, int64_t count, const float tint[4]) {
    uint8_t table[3][256];
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < 256; i++) {
            const double x = 255.0 * (double)tint[1 + c] * pow(i / 255.0, (double)tint[0]);
            table[c][i] = (uint8_t)(x < 255.0 ? lrint(x) : 255);
        }
    for (int64_t i = 0; i < count; i++)
        for (int c = 0; c < 3; c++) pixels[3 * i + c] = table[c][pixels[3 * i + c]];
}

void view_scratch_free(ViewScratch *s) {
    image_scratch_free(&s->image);
    resize_scratch_free(&s->resize);
}

static Status resize_view(const Image *image, const ViewOptions *o, ResizeScratch *scratch,
                          uint8_t *pixels) {
    ViewGeometry g = view_geometry(o, image->width, image->height);
    ImageRegion all = {0, 0, image->width, image->height};
    ImageRegion window = {g.left, g.top, o->width, o->height};
    return resize_window(image, all, FILTER_LANCZOS, g.full_width, g.full_height, window, pixels,
                         scratch);
}

Status view_load(const SceneSet *set, int64_t scene, int64_t frame, const ViewOptions *o,
                 ViewScratch *scratch, uint8_t *pixels, ViewCamera *camera, int64_t source[2]) {
    const void *bytes;
    size_t size;
    bool owned;
    char name[800];
    Image image = {0};
    TRY(scene_bytes(set, scene, frame, &bytes, &size, &owned));
    scene_frame_name(set, scene, frame, name, sizeof name);
    Status s = image_decode_scratch(bytes, size, name, &o->image, &scratch->image, &image);
    if (owned) mem_free((void *)(uintptr_t)bytes);
    TRY(s);
    TRY(resize_view(&image, o, &scratch->resize, pixels));
    *camera = view_camera(&scene_set_at(set, scene)->frames[frame], o, image.width, image.height);
    if (source != NULL) {
        source[0] = image.width;
        source[1] = image.height;
    }
    return STATUS_OK;
}

Status view_same_size(const SceneSet *set, const ViewSample *sample, int v, const int64_t first[2],
                      const int64_t size[2]) {
    char name[800];
    if (size[0] == first[0] && size[1] == first[1]) return STATUS_OK;
    return status_set(STATUS_DATA,
                      "%s: %lldx%lld pixels, but frame %lld of the scene has %lldx%lld",
                      scene_frame_name(set, sample->scene, sample->frames[v], name, sizeof name),
                      (long long)size[0], (long long)size[1], (long long)sample->frames[0],
                      (long long)first[0], (long long)first[1]);
}

Status view_load_sample(const SceneSet *set, const ViewSample *sample, const ViewOptions *o,
                        ViewScratch *scratch, uint8_t *pixels, ViewCamera *cameras) {
    int64_t first[2] = {0, 0}, size[2], bytes = o->width * o->height * 3;
    int views = sample->inputs + sample->targets;
    for (int v = 0; v < views; v++) {
        TRY(view_load(set, sample->scene, sample->frames[v], o, scratch, pixels + v * bytes,
                      &cameras[v], size));
        if (v == 0) memcpy(first, size, sizeof first);
        TRY(view_same_size(set, sample, v, first, size));
    }
    return STATUS_OK;
}
