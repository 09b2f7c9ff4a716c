"""Pillow: pictures made, resized, filtered and written, as a server of thumbnails does. Argument: rounds."""
import io
import sys
from PIL import Image, ImageFilter

rounds = int(sys.argv[1])
band = Image.linear_gradient("L")
for i in range(rounds):
    width, height = 2400 + 40 * (i % 5), 1800 + 30 * (i % 7)
    bands = [band.rotate(90 * n).resize((width, height)) for n in range(3)]
    picture = Image.merge("RGB", bands)
    soft = picture.filter(ImageFilter.BoxBlur(3))
    turned = soft.transpose(Image.Transpose.ROTATE_90).convert("RGBA")
    small = turned.resize((600, 800), Image.Resampling.LANCZOS).convert("RGB")
    out = io.BytesIO()
    soft.save(out, "JPEG", quality=80)
    again = Image.open(io.BytesIO(out.getvalue()))
    again.load()
    print(small.getpixel((5, 7)), again.getpixel((100, 200)), again.size)
