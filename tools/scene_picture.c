/* The epipolar picture of a pair of frames. */
#include <math.h>
#include <string.h>

#include "core/memory.h"
#include "tools/scene_pose.h"

enum { LARGE = 640, GAP = 8, LINE_PIXELS = 400 };

static const uint8_t colors[][3] = {{255, 60, 60},  {60, 220, 60}, {80, 140, 255}, {255, 200, 0},
                                    {255, 80, 255}, {0, 230, 230}, {255, 140, 0},  {180, 255, 80}};

static void put_pixel(Image *image, int64_t left, int64_t right, double x, double y,
                      const uint8_t color[3]) {
    int64_t ix = left + (int64_t)floor(x), iy = (int64_t)floor(y);
    if (ix < left || ix >= right || iy < 0 || iy >= image->height) return;
    memcpy(image->pixels + (iy * image->width + ix) * 3, color, 3);
}

static void put_cross(Image *image, int64_t left, int64_t right, double x, double y,
                      const uint8_t color[3]) {
    for (int k = -5; k <= 5; k++)
        for (int thick = 0; thick < 2; thick++) {
            put_pixel(image, left, right, x + k, y + thick, color);
            put_pixel(image, left, right, x + thick, y + k, color);
        }
}

/* From infinity inwards, in steps below a pixel. */
static void put_line(Image *image, int64_t left, int64_t right, const PoseLine *l,
                     const uint8_t color[3]) {
    double x, y;
    for (int k = 0; k < 4 * LINE_PIXELS; k++)
        if (pose_line_at(l, 0.25 * k, &x, &y)) put_pixel(image, left, right, x, y, color);
}

static void copy_rows(const Image *from, Image *to, int64_t left) {
    for (int64_t y = 0; y < from->height; y++)
        memcpy(to->pixels + (y * to->width + left) * 3, from->pixels + y * from->width * 3,
               (size_t)from->width * 3);
}

static void draw_corner(const PoseFrame *a, const PoseFrame *b, PoseCorner c, const uint8_t *color,
                        Image *sheet) {
    int64_t right = a->image.width + GAP;
    double best[2], x = (double)c.x + 0.5, y = (double)c.y + 0.5;
    PoseLine l = pose_line(a, b, x, y, false);
    put_cross(sheet, 0, a->image.width, x, y, color);
    put_line(sheet, right, sheet->width, &l, color);
    if (pose_match(a, c, b, &l, LARGE / 4, best) > 0.8)
        put_cross(sheet, right, sheet->width, best[0], best[1], color);
}

static Status draw(const PoseFrame *a, const PoseFrame *b, const char *path) {
    PoseCorner corners[POSE_MAX_CORNERS];
    void *block;
    Image sheet = {NULL, a->image.width + GAP + b->image.width,
                   a->image.height > b->image.height ? a->image.height : b->image.height};
    TRY(mem_alloc(&block, sheet.width * sheet.height, 3, "epipolar picture"));
    sheet.pixels = block;
    memset(block, 255, (size_t)(sheet.width * sheet.height * 3));
    copy_rows(&a->image, &sheet, 0);
    copy_rows(&b->image, &sheet, a->image.width + GAP);
    int count = pose_corners(a, 5, 4, corners);
    for (int i = 0; i < count; i++)
        draw_corner(a, b, corners[i], colors[(size_t)i % (sizeof colors / sizeof colors[0])],
                    &sheet);
    Status s = image_write_png(path, &sheet);
    mem_free(block);
    return s;
}

Status pose_picture(const SceneSet *set, int64_t scene, const int64_t frames[2], const char *path) {
    PoseFrame a, b;
    TRY(pose_frame_load(set, scene, frames[0], LARGE, &a));
    Status s = pose_frame_load(set, scene, frames[1], LARGE, &b);
    if (s == STATUS_OK) {
        s = draw(&a, &b, path);
        pose_frame_free(&b);
    }
    pose_frame_free(&a);
    return s;
}
