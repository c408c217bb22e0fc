#include "datasets/transform.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "datasets/color.h"

#define PREPROCESS_FIELD(f) offsetof(Preprocess, f)
#define AUGMENT_FIELD(f)    offsetof(Augment, f)

const Option preprocess_options[] = {
    {"crop_pct", OPTION_FLOAT, PREPROCESS_FIELD(crop_pct), "0.875", 0.05, 1, NULL, "crop-pct",
     "share of the resized image that the crop keeps: short side int(S / crop_pct), crop S"},
    {"crop_mode", OPTION_CHOICE, PREPROCESS_FIELD(crop_mode), "center", 0, 0,
     "center|squash|border", "crop-mode",
     "center: keep the aspect, cut; squash: ignore the aspect; border: fit the whole image"},
    {"filter", OPTION_CHOICE, PREPROCESS_FIELD(filter), "bicubic", 0, 0, "bilinear|bicubic|lanczos",
     "interpolation", "resampling filter (anti-aliased, Pillow's)"},
    {"mean_r", OPTION_FLOAT, PREPROCESS_FIELD(mean[0]), "0.485", 0, 1, NULL, NULL,
     "mean of red in [0,1], subtracted"},
    {"mean_g", OPTION_FLOAT, PREPROCESS_FIELD(mean[1]), "0.456", 0, 1, NULL, NULL, "mean of green"},
    {"mean_b", OPTION_FLOAT, PREPROCESS_FIELD(mean[2]), "0.406", 0, 1, NULL, NULL, "mean of blue"},
    {"std_r", OPTION_FLOAT, PREPROCESS_FIELD(std[0]), "0.229", 1e-3, 10, NULL, NULL,
     "standard deviation of red in [0,1], divided by"},
    {"std_g", OPTION_FLOAT, PREPROCESS_FIELD(std[1]), "0.224", 1e-3, 10, NULL, NULL,
     "standard deviation of green"},
    {"std_b", OPTION_FLOAT, PREPROCESS_FIELD(std[2]), "0.225", 1e-3, 10, NULL, NULL,
     "standard deviation of blue"},
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

const Option augment_options[] = {
    {"random_resized_crop", OPTION_BOOL, AUGMENT_FIELD(random_resized_crop), "true", 0, 0, NULL,
     "random-resized-crop",
     "crop a random region and resize it; false: evaluation transform, shifted at random"},
    {"scale_min", OPTION_FLOAT, AUGMENT_FIELD(scale_min), "0.08", 1e-4, 1, NULL, "scale-min",
     "smallest area share of the random region"},
    {"scale_max", OPTION_FLOAT, AUGMENT_FIELD(scale_max), "1", 1e-4, 1, NULL, "scale-max",
     "largest area share of the random region"},
    {"ratio_min", OPTION_FLOAT, AUGMENT_FIELD(ratio_min), "0.75", 1e-2, 100, NULL, "ratio-min",
     "smallest width / height of the random region"},
    {"ratio_max", OPTION_FLOAT, AUGMENT_FIELD(ratio_max), "1.3333333333333333", 1e-2, 100, NULL,
     "ratio-max", "largest width / height of the random region"},
    {"flip", OPTION_FLOAT, AUGMENT_FIELD(flip), "0.5", 0, 1, NULL, "hflip",
     "probability of mirroring left to right"},
    {"aa", OPTION_STRING, AUGMENT_FIELD(policy), "none", 0, 0, NULL, "aa",
     "operations on each picture: rand-m9-mstd0.5-inc1 (RandAugment: magnitude m of 10, its "
     "standard "
     "deviation mstd, inc1: larger changes more; also -nN operations, 2, each with -pP, 0.5), "
     "trivial "
     "(TrivialAugment, wide), none"},
    {"jitter", OPTION_FLOAT, AUGMENT_FIELD(jitter), "0", 0, 1, NULL, "color-jitter",
     "brightness, contrast and saturation factors of 1 +- jitter; 0: off; inactive beside --aa"},
    {"shift", OPTION_INT, AUGMENT_FIELD(shift), "4", 0, 1024, NULL, "shift",
     "pixels of random shift (padding and random crop) when random_resized_crop is off"},
    {"shift_fill", OPTION_CHOICE, AUGMENT_FIELD(shift_fill), "black", 0, 0, "black|mirror",
     "shift-fill", "what a shift brings in"},
    {"mixup", OPTION_FLOAT, AUGMENT_FIELD(mixup), "0", 0, 100, NULL, "mixup",
     "alpha of mixup: batches blended with Beta(alpha, alpha); 0: off"},
    {"cutmix", OPTION_FLOAT, AUGMENT_FIELD(cutmix), "0", 0, 100, NULL, "cutmix",
     "alpha of cutmix: boxes pasted, area from Beta(alpha, alpha); 0: off"},
    {"mixup_prob", OPTION_FLOAT, AUGMENT_FIELD(mixup_prob), "1", 0, 1, NULL, "mixup-prob",
     "probability that a batch is mixed, when mixup or cutmix is on"},
    {"mixup_switch_prob", OPTION_FLOAT, AUGMENT_FIELD(mixup_switch_prob), "0.5", 0, 1, NULL,
     "mixup-switch-prob", "probability of cutmix instead of mixup, when both are on"},
    {"mixup_off_epoch", OPTION_INT, AUGMENT_FIELD(mixup_off_epoch), "0", 0, 1e6, NULL,
     "mixup-off-epoch", "no mixup and cutmix from this epoch on, counted from 0; 0: to the end"},
    {"reprob", OPTION_FLOAT, AUGMENT_FIELD(reprob), "0", 0, 1, NULL, "reprob",
     "probability of random erasing: a box of noise in place of 2 to 33 % of the picture"},
    {NULL, OPTION_BOOL, 0, NULL, 0, 0, NULL, NULL, NULL},
};

/* Round half to even, as Python's round(). */
static int64_t round_even(double x) {
    return (int64_t)nearbyint(x);
}

/* vittt.md 8.4 */
static int64_t centre_offset(int64_t size, int64_t crop) {
    return round_even((double)(size - crop) / 2.0);
}

/* Short side (or, for CROP_BORDER, long side) before the crop. */
static int64_t resized_side(const Preprocess *p) {
    int64_t side = (int64_t)((double)p->image_size / p->crop_pct);
    return side < p->image_size ? p->image_size : side;
}

static ImageRegion whole(const Image *image) {
    return (ImageRegion){0, 0, image->width, image->height};
}

/* Resize to full_w x full_h, crop S in the middle. */
static Status resize_crop(const Preprocess *p, const Image *src, int64_t full_w, int64_t full_h,
                          uint8_t *dst, ResizeScratch *scratch) {
    int64_t s = p->image_size;
    ImageRegion window = {centre_offset(full_w, s), centre_offset(full_h, s), s, s};
    return resize_window(src, whole(src), (Filter)p->filter, full_w, full_h, window, dst, scratch);
}

static void fill_mean(const Preprocess *p, uint8_t *dst, int64_t pixels) {
    uint8_t color[3];
    for (int c = 0; c < 3; c++) color[c] = (uint8_t)round_even(255.0 * p->mean[c]);
    for (int64_t i = 0; i < pixels; i++) memcpy(dst + i * 3, color, 3);
}

/* The smaller of two sizes, and where it starts in image and crop when both are centred. */
static int64_t overlap(int64_t size, int64_t crop, int64_t *in_image, int64_t *in_crop) {
    *in_image = size > crop ? centre_offset(size, crop) : 0;
    *in_crop = size < crop ? (crop - size) / 2 : 0;
    return size < crop ? size : crop;
}

/* A w x h picture at the front of dst[s,s,3] moves to (left, top); the rest gets the mean colour.
 * From the last row up, nothing is overwritten before it was moved. */
static void place_in_border(const Preprocess *p, uint8_t *dst, int64_t w, int64_t h, int64_t left,
                            int64_t top) {
    int64_t s = p->image_size;
    fill_mean(p, dst + (top + h) * s * 3, (s - top - h) * s);
    for (int64_t y = h - 1; y >= 0; y--) {
        uint8_t *row = dst + (top + y) * s * 3;
        memmove(row + left * 3, dst + y * w * 3, (size_t)w * 3);
        fill_mean(p, row, left);
        fill_mean(p, row + (left + w) * 3, s - left - w);
    }
    fill_mean(p, dst, top * s);
}

/* The long side becomes `side`, the short side what keeps the aspect. */
static Status border_apply(const Preprocess *p, const Image *src, uint8_t *dst,
                           ResizeScratch *scratch) {
    int64_t s = p->image_size, side = resized_side(p), left, top;
    int64_t longest = src->width > src->height ? src->width : src->height;
    int64_t w = round_even((double)src->width * (double)side / (double)longest);
    int64_t h = round_even((double)src->height * (double)side / (double)longest);
    if (w < 1) w = 1;
    if (h < 1) h = 1;
    ImageRegion window;
    window.width = overlap(w, s, &window.left, &left);
    window.height = overlap(h, s, &window.top, &top);
    TRY(resize_window(src, whole(src), (Filter)p->filter, w, h, window, dst, scratch));
    place_in_border(p, dst, window.width, window.height, left, top);
    return STATUS_OK;
}

Status preprocess_apply(const Preprocess *p, const Image *src, uint8_t *dst,
                        ResizeScratch *scratch) {
    int64_t side = resized_side(p), w = side, h = side;
    switch ((CropMode)p->crop_mode) {
    case CROP_BORDER:
        return border_apply(p, src, dst, scratch);
    case CROP_SQUASH:
        break;
    case CROP_CENTER: /* vittt.md 8.3: the long side is truncated */
        if (src->width > src->height) w = side * src->width / src->height;
        if (src->height > src->width) h = side * src->height / src->width;
        break;
    }
    return resize_crop(p, src, w, h, dst, scratch);
}

void preprocess_text(const Preprocess *p, char *text, size_t size) {
    static const char *const filters[] = {"bilinear", "bicubic", "lanczos"};
    long long s = (long long)p->image_size, side = (long long)resized_side(p);
    char resize[96];
    switch ((CropMode)p->crop_mode) {
    case CROP_SQUASH:
        snprintf(resize, sizeof resize, "resize to %lldx%lld", side, side);
        break;
    case CROP_BORDER:
        snprintf(resize, sizeof resize, "resize long side to %lld, pad with the mean colour", side);
        break;
    case CROP_CENTER:
    default:
        snprintf(resize, sizeof resize, "resize short side to %lld", side);
        break;
    }
    snprintf(text, size,
             "%s (%s, antialiased), centre crop %lld, scale to [0,1], mean %g %g %g, std %g %g %g",
             resize, filters[p->filter], s, p->mean[0], p->mean[1], p->mean[2], p->std[0],
             p->std[1], p->std[2]);
}
